//! References from a status to another object.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An object in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reference {
    /// Name of the object.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,

    /// Namespace of the object.
    #[schemars(schema_with = "crate::schema::namespace")]
    pub namespace: String,
}
