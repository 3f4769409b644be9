"""The private parts of `Runtime`."""
