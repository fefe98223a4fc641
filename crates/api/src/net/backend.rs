//! Tunnel technology, and the parameters that both ends exchange.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schema::rule;

/// Tunnel technology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendType {
    /// WireGuard.
    #[default]
    Wireguard,
}

/// The key of `backend_config` with the sender's WireGuard public key, in base64.
pub const BACKEND_PUBLIC_KEY: &str = "publicKey";

/// The key of `backend_config` with the UDP port on which the sender's gateway listens.
pub const BACKEND_PORT: &str = "port";

pub(super) fn config(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string", "maxLength": 1024 },
        "maxProperties": 32,
        "x-kubernetes-validations": [
            rule(
                &format!(
                    "!('{BACKEND_PORT}' in self) || (self['{BACKEND_PORT}'].matches('^[0-9]{{1,5}}$') \
                     && int(self['{BACKEND_PORT}']) >= 1 && int(self['{BACKEND_PORT}']) <= 65535)"
                ),
                "port must be a number between 1 and 65535",
            ),
            rule(
                &format!(
                    "!('{BACKEND_PUBLIC_KEY}' in self) \
                     || self['{BACKEND_PUBLIC_KEY}'].matches('^[A-Za-z0-9+/]{{43}}=$')"
                ),
                "publicKey must be a WireGuard public key: 32 bytes in base64, 44 characters",
            ),
        ],
    })
}
