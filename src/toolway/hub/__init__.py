"""The hub: the public client class and the life of a call."""
