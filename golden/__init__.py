"""Reference models in NumPy: float truth, exact integer functions, the language model that feeds them."""
