"""The forecast: how many firings each minute or hour to come has, counted by rules, and what would lower its peak."""
