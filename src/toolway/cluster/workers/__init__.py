"""Workers on one machine: their messages, and how they appear as one gateway."""
