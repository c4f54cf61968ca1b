"""Features of a gateway, one folder each. The core imports none: `part_api/registry.py` lists them."""
