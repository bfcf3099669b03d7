"""Graph nodes as the machinery sees them: columns, calling convention, and the types of ``worker`` and ``call``."""
