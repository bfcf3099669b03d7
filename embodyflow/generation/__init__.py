"""Generation engines: language models that complete prompts, behind one interface."""
