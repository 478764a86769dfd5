"""Link between host and accelerator: access to a bus over a serial line."""
