"""Small HTTP/1.1 client that counts the bytes of a request that were sent."""
