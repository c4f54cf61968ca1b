"""A living example for `toolway ui --demo`: a few small servers, good and bad, and somebody who calls them."""
