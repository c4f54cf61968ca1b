"""Who we are to servers: tokens, and how they are had."""
