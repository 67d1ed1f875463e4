"""Programs of torch.export: archives (.pt2) are read as data, and nothing in them is executed."""
