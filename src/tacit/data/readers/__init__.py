"""Where records come from: files and built-in data sets."""
