"""`data.Dataset`: the documented names of dataset transformations, over Grain."""
