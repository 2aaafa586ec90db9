"""What tasks share: the base class, and the parts that it is made of."""
