"""Child processes: start them, exchange requests and answers, limit their time and memory."""
