"""Processes of ours: started by a keeper, so that none outlives us."""
