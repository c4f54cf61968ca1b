"""A lean HTTP/1.1 client that knows how many bytes of a request left."""
