-- Figures for people that pages show.

-- How long a worker had an attempt before it started it, in milliseconds; null: not known. It costs
-- eight bytes of WAL for each run.
ALTER TABLE outcomes ADD COLUMN held_ms integer;

-- How much a node fires and a worker finishes, by its heartbeats; null: it does not say.
ALTER TABLE nodes ADD COLUMN fired_per_second real;
ALTER TABLE workers ADD COLUMN finished_per_second real;
