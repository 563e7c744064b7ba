"""Plans: public facts and settings, resolved before a run starts; one planner makes them."""
