//! How much of what is free is offered.
