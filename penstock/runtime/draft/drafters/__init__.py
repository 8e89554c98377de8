"""Where guesses come from: earlier tokens, a client's prediction, a second model, trained heads."""
