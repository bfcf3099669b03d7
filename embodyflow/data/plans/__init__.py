"""Plans of which rank gets which rows: consecutive splits, and splits of equal cost."""
