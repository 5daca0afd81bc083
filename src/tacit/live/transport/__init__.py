"""TLS connections, frames and certificates between organisations."""
