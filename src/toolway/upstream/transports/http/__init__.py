"""A server behind a URL: Streamable HTTP, both eras, on our own HTTP/1.1 client."""
