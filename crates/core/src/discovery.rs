//! Which clusters there are: what is found and what is known.
