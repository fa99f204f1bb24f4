"""Child processes: one way to start them, one protocol to ask them, one watch over time and memory."""
