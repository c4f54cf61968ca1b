"""The hub: the public client classes, and the path of a call from a program to a server."""
