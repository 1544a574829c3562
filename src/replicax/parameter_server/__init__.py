"""Variables on servers, workers that do not wait for each other, and who tells them what to do."""
