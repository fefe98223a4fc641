//! Schemas and CEL validation rules with their messages, for the API server. The rules use only CEL
//! of Kubernetes 1.31 and later. Strings, lists and maps are bounded, since the API server refuses
//! rules of unbounded cost.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Implements `JsonSchema` for a type with the schema that `$schema` returns.
macro_rules! checked_by {
    ($type:ident, $schema:path) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema(generator)
            }
        }
    };
}
pub(crate) use checked_by;

/// A rule: an expression over `self`, and the message if it is false.
pub(crate) fn rule(expression: &str, message: &str) -> Value {
    json!({ "rule": expression, "message": message })
}

/// A string of at most `max` characters with validation rules.
pub(crate) fn text(max: usize, rules: &[Value]) -> Schema {
    json_schema!({ "type": "string", "maxLength": max, "x-kubernetes-validations": rules })
}

/// A DNS label of at most `max` characters; `what` describes it in the message.
pub(crate) fn label(what: &str, max: usize) -> Schema {
    let message = format!(
        "must be {what}: lower-case letters, digits and '-', with a letter or digit at both ends"
    );
    text(max, &[rule(&matches(LABEL), &message)])
}

pub(crate) fn cluster_id(_: &mut SchemaGenerator) -> Schema {
    label("a cluster id", crate::ClusterId::MAX_LEN)
}

pub(crate) fn cluster_name(_: &mut SchemaGenerator) -> Schema {
    label("a cluster name", crate::ClusterName::MAX_LEN)
}

pub(crate) fn namespace(_: &mut SchemaGenerator) -> Schema {
    label("the name of a namespace", 63)
}

/// An object name: a DNS subdomain.
pub(crate) fn object_name(_: &mut SchemaGenerator) -> Schema {
    text(
        253,
        &[rule(
            &matches(&format!("^{SUBDOMAIN}$")),
            "must be the name of an object: lower-case letters, digits, '-' and '.', with a \
             letter or digit at both ends",
        )],
    )
}

pub(crate) fn cidr(_: &mut SchemaGenerator) -> Schema {
    text(
        MAX_CIDR,
        &[
            rule("isCIDR(self)", "must be a network, such as 10.0.0.0/16 or fd00::/48"),
            no_host_bits(),
        ],
    )
}

pub(crate) fn nat_cidr(_: &mut SchemaGenerator) -> Schema {
    text(
        MAX_CIDR,
        &[
            rule(
                "self == 'None' || isCIDR(self)",
                "must be None (not remapped) or a network, such as 10.0.0.0/16 or fd00::/48",
            ),
            no_host_bits(),
        ],
    )
}

pub(crate) fn ip(_: &mut SchemaGenerator) -> Schema {
    text(MAX_IP, &[rule("isIP(self)", "must be an address, such as 192.0.2.10 or 2001:db8::10")])
}

/// A list of CIDRs.
pub(crate) fn cidrs(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": cidr(generator),
        "maxItems": 256,
        "x-kubernetes-list-type": "set",
    })
}

/// A list of interface names.
pub(crate) fn interfaces(_: &mut SchemaGenerator) -> Schema {
    let message = "must be the name of a network interface, such as eth0: at most 15 characters \
                   without '/' and white space";
    json_schema!({
        "type": "array",
        "items": text(15, &[rule(&matches(r"^[^/\s]+$"), message)]),
        "maxItems": 64,
        "x-kubernetes-list-type": "set",
    })
}

/// The URL of an auth service.
pub(crate) fn auth_url(_: &mut SchemaGenerator) -> Schema {
    text(
        1024,
        &[
            rule(
                "isURL(self) && url(self).getScheme() == 'https' && url(self).getHostname() != ''",
                "must be an https URL, such as https://auth.example.com:443",
            ),
            rule(
                "!isURL(self) || url(self).getPort() == '' || (url(self).getPort().size() <= 5 \
                 && int(url(self).getPort()) >= 1 && int(url(self).getPort()) <= 65535)",
                "the port of the URL must be between 1 and 65535",
            ),
            rule(
                &format!(
                    "!self.matches(r'^https://(\\[|[0-9.]+([:/]|$))') || self.matches(\
                     r'^https://(\\[[0-9A-Fa-f:.]+\\]|{OCTET}(\\.{OCTET}){{3}})([:/]|$)')"
                ),
                "the host of the URL looks like an address, but is none",
            ),
            rule(
                "!self.contains('@') && !self.contains('?') && !self.contains('#')",
                "the URL must hold no user, password, query or fragment",
            ),
        ],
    )
}

/// A DNS domain, with or without a trailing dot.
pub(crate) fn domain(_: &mut SchemaGenerator) -> Schema {
    text(
        254,
        &[rule(
            &format!("{} && !isIP(self)", matches(DOMAIN)),
            "must be a DNS name, such as liqo.example.com",
        )],
    )
}

/// An address or a DNS name, with or without a port.
pub(crate) fn endpoint(_: &mut SchemaGenerator) -> Schema {
    text(
        260,
        &[
            rule(
                &format!(
                    "isIP(self) || self.matches(\
                     r'^({HOST}(\\.{HOST})*\\.?|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{{1,5}})?$')"
                ),
                "must be an address or a DNS name, with or without a port, such as 192.0.2.10, \
                 [2001:db8::10]:5871 or gateway.example.com:5871",
            ),
            rule(
                "isIP(self) || !self.matches('^[0-9.]+(:[0-9]+)?$') || isIP(self.split(':')[0])",
                "looks like an address, but is none",
            ),
            rule(
                r"!self.matches(r'^\[.*\]') || isIP(self.substring(1, self.indexOf(']')))",
                "what is in brackets must be an IPv6 address",
            ),
            rule(
                "isIP(self) || !self.matches(':[0-9]{1,5}$') \
                 || (int(self.substring(self.lastIndexOf(':') + 1)) >= 1 \
                 && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535)",
                "the port must be between 1 and 65535",
            ),
        ],
    )
}

pub(crate) fn fingerprint(_: &mut SchemaGenerator) -> Schema {
    text(
        95,
        &[rule(
            &matches("^([0-9a-fA-F]{64}|[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){31})$"),
            "must be the SHA-256 fingerprint of a certificate: 64 hexadecimal digits, with or \
             without colons",
        )],
    )
}

/// Labels of an object.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string", "maxLength": 63 },
        "maxProperties": 64,
        "x-kubernetes-validations": [
            rule(
                &format!("self.all(key, {})", is_qualified_name("key")),
                "every key must be that of a label: a name of at most 63 letters, digits, '-', \
                 '_' and '.', with or without a DNS name and '/' before it",
            ),
            rule(
                &format!("self.all(key, self[key].matches('^({LABEL_VALUE})?$'))"),
                "every value must be that of a label: letters, digits, '-', '_' and '.', with a \
                 letter or digit at both ends",
            ),
        ],
    })
}

/// Kubernetes conditions, one per type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {
                    "description": "Type of the condition, in CamelCase.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 316,
                },
                "status": {
                    "description": "True, False or Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": {
                    "description": "Reason of the last transition, in CamelCase.",
                    "type": "string",
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Human-readable details. May be empty.",
                    "type": "string",
                    "maxLength": 32768,
                },
                "lastTransitionTime": {
                    "description": "Time of the last change of the status.",
                    "type": "string",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "description": "The metadata.generation that the condition refers to.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
            },
        },
    })
}

/// CEL: `variable`, a key of a map, is a valid label key or resource name.
pub(crate) fn is_qualified_name(variable: &str) -> String {
    format!(
        "{variable}.matches(r'^({SUBDOMAIN}/)?{LABEL_VALUE}$') \
         && {variable}.substring({variable}.lastIndexOf('/') + 1).size() <= 63 \
         && {variable}.size() <= 317"
    )
}

/// CEL: `variable`, a key of a map, is a cluster id. The expression is short, because its cost
/// limits the number of entries in the map.
pub(crate) fn is_cluster_id(variable: &str) -> String {
    format!("!{variable}.matches('^$|^-|-$|[^-a-z0-9]|.{{64}}')")
}

/// CEL: `variable` is an address in canonical form, so that no two keys of a map mean the same.
pub(crate) fn is_canonical_ip(variable: &str) -> String {
    format!("isIP({variable}) && ip.isCanonical({variable})")
}

/// CEL: the CIDRs `a` and `b`, if valid, do not overlap.
pub(crate) fn disjoint(a: &str, b: &str) -> String {
    format!(
        "!isCIDR({a}) || !isCIDR({b}) \
         || !(cidr({a}).containsCIDR(cidr({b})) || cidr({b}).containsCIDR(cidr({a})))"
    )
}

/// CEL: the translated CIDR `nat` is None or, if both are valid, as large as `real`, so that
/// addresses keep their host part.
pub(crate) fn same_size(nat: &str, real: &str) -> String {
    format!(
        "!isCIDR({nat}) || !isCIDR({real}) \
         || (cidr({nat}).prefixLength() == cidr({real}).prefixLength() \
         && cidr({nat}).ip().family() == cidr({real}).ip().family())"
    )
}

const MAX_IP: usize = 45;
const MAX_CIDR: usize = 49;
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_VALUE: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?";
const DOMAIN: &str = r"^([A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?(\.|$))+$";
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const HOST: &str = "[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?";

fn matches(pattern: &str) -> String {
    format!("self.matches(r'{pattern}')")
}

fn no_host_bits() -> Value {
    rule(
        "!isCIDR(self) || cidr(self) == cidr(self).masked()",
        "must be a network, not an address in it: 10.0.0.0/16, not 10.0.0.1/16",
    )
}
