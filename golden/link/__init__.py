"""Link between host and accelerator: frames, and what the link answers to them."""
