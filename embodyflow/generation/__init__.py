"""Generation engines: a language model that completes prompts, behind one interface."""
