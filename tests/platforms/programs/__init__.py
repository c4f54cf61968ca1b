"""Programs that the checks start as processes of their own."""
