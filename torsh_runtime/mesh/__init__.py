"""Arranges ranks along named axes: the arithmetic in layout, the axes' groups in mesh."""
