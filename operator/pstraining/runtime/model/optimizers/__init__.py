"""The user's optimizer on packed vectors and on touched rows, with clipping, trust ratios and loss scaling."""
