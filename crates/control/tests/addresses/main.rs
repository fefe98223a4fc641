//! The address service and the joining of networks, on real API servers: what was answered
//! survives, what can't be answered says why, and no two clusters ever share a name.

mod certificates;
mod frozen;
mod joining;
mod leader;
mod mappings;
mod names;
mod served;
mod side;
mod wrong_input;
