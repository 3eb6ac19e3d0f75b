"""Small models with random weights, their traced programs and named sharding plans; nothing is downloaded."""
