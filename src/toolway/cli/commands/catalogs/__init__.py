"""Commands about what servers offer: prompts, resources, one tool in detail, generated clients."""
