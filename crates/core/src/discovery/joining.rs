//! Automatic peering with discovered clusters. It applies until a user has ever set `spec.join`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use tombolo_api::discovery::DiscoveryType;

use super::LocalCluster;
use crate::view::Entry;

/// Whether nobody but these field managers, which create entries, has ever set `spec.join`. Needs
/// managedFields.
pub fn is_undecided(entry: &Entry<'_>, managers: &[&str]) -> bool {
    let managed = entry.managed_fields.iter();
    let mut setters = managed.filter(|it| sets_join(it)).map(|it| it.manager.as_deref()).peekable();
    setters.peek().is_some()
        && setters.all(|setter| setter.is_some_and(|setter| managers.contains(&setter)))
}

impl LocalCluster<'_> {
    /// Whether to peer with a cluster that was discovered in the local network before `autojoin`
    /// was switched on.
    pub fn joins(&self, entry: &Entry<'_>, managers: &[&str]) -> bool {
        self.config.autojoin && entry.kind == DiscoveryType::Lan && may_be_joined(entry, managers)
    }
}

/// Whether `autojoin` may set `spec.join` of this entry.
pub fn may_be_joined(entry: &Entry<'_>, managers: &[&str]) -> bool {
    !entry.join && entry.deleted.is_none() && is_undecided(entry, managers)
}

fn sets_join(managed: &ManagedFieldsEntry) -> bool {
    managed.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:spec"]["f:join"].is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{config::DiscoveryConfig, discovery::ForeignCluster};

    use super::*;
    use crate::discovery::entry::tests::entry;

    const OURS: [&str; 2] = ["us", "ours"];

    fn set_by(kind: &str, managers: &[&str]) -> ForeignCluster {
        let mut entry = entry("there", kind, Some("milan-id"));
        let fields =
            |it: &&str| json!({ "manager": it, "fieldsV1": { "f:spec": { "f:join": {} } } });
        let mut managed: Vec<_> = managers.iter().map(fields).collect();
        managed.push(json!({ "manager": "a", "fieldsV1": { "f:spec": { "f:authUrl": {} } } }));
        entry.metadata.managed_fields = serde_json::from_value(managed.into()).unwrap();
        entry
    }

    #[test]
    fn an_earlier_entry_is_joined_unless_a_user_has_ever_set_join() {
        let config = DiscoveryConfig { autojoin: true, ..DiscoveryConfig::default() };
        let local =
            LocalCluster { us: &"rome-id".parse().unwrap(), networks: &[], config: &config };
        for (kind, managers, is_joined) in [
            ("LAN", &["us"][..], true),
            ("LAN", &["us", "us"], true),
            // Its request came before its announcement.
            ("LAN", &["ours"], true),
            ("LAN", &["us", "ours"], true),
            ("LAN", &["us", "kubectl"], false),
            ("LAN", &["kubectl"], false),
            ("LAN", &[], false),
            ("WAN", &["us"], false),
            ("Manual", &["us"], false),
        ] {
            let entry = set_by(kind, managers);
            let entry = Entry::from_resource(&entry);
            assert_eq!(local.joins(&entry, &OURS), is_joined, "{kind} {managers:?}");
        }
        let mut milan = set_by("LAN", &["us"]);
        let off = DiscoveryConfig::default();
        let off = LocalCluster { config: &off, ..local };
        assert!(!off.joins(&Entry::from_resource(&milan), &OURS));
        milan.spec.join = true;
        let milan = Entry::from_resource(&milan);
        assert!(!local.joins(&milan, &OURS), "already joined");
        assert!(is_undecided(&milan, &OURS), "no user has set it");
    }
}
