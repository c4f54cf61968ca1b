"""Small HTTP/1.1 server, and a client that counts the bytes of each request that were sent."""
