"""Features of a gateway, one folder each. The core imports none of them: `part_api/registry.py` names them."""
