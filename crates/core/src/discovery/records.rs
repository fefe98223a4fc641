//! Parses the DNS records of a searched domain.

use std::collections::BTreeMap;

use hickory_proto::rr::{Name, RData, Record};

use super::{ListedCluster, UnusableRecord};

/// The distinct targets of a domain's PTR records, with their TTLs; by the name in lower case, as
/// in [`ListedCluster::record`].
pub fn names(pointers: Vec<Record>) -> BTreeMap<String, (Name, u32)> {
    let listed = pointers.into_iter().filter_map(|record| match record.data {
        RData::PTR(target) => Some((record_of(&target.0), (target.0, record.ttl))),
        _ => None,
    });
    listed.collect()
}

/// A name as in [`ListedCluster::record`].
pub fn record_of(name: &Name) -> String {
    name.to_lowercase().to_ascii()
}

/// The auth service of a listed cluster, before the addresses of its host are known.
#[derive(Clone, Debug)]
pub struct Service {
    record: String,
    /// The host.
    pub target: Name,
    port: u16,
    properties: BTreeMap<String, String>,
    ttl: u32,
}

impl Service {
    /// Parses the SRV and TXT records of a listed name, whose PTR record has this TTL.
    pub fn read(
        name: &Name,
        ttl: u32,
        services: &[Record],
        texts: &[Record],
    ) -> Result<Self, UnusableRecord> {
        let record = record_of(name);
        let services = services.iter().filter_map(|record| match &record.data {
            RData::SRV(service) => Some((service, record.ttl)),
            _ => None,
        });
        let best =
            services.min_by_key(|(service, _)| (service.priority, u16::MAX - service.weight));
        let Some((service, service_ttl)) = best else {
            return Err(UnusableRecord { record, what: "has no SRV record".to_owned() });
        };
        let service = Self {
            record,
            target: service.target.clone(),
            port: service.port,
            properties: texts.iter().flat_map(properties).collect(),
            ttl: texts.iter().map(|text| text.ttl).chain([service_ttl]).fold(ttl, u32::min),
        };
        service.listed(service.ttl)?;
        Ok(service)
    }

    /// The cluster, given the A and AAAA records of the host.
    pub fn at(&self, addresses: &[Record]) -> Result<ListedCluster, UnusableRecord> {
        let ttls: Vec<u32> = addresses
            .iter()
            .filter(|record| record.data.ip_addr().is_some())
            .map(|record| record.ttl)
            .collect();
        if ttls.is_empty() {
            let host = self.target.to_ascii();
            let what = format!(
                "has an SRV record with the target {host}, which has neither A nor AAAA records"
            );
            return Err(UnusableRecord { record: self.record.clone(), what });
        }
        self.listed(ttls.into_iter().fold(self.ttl, u32::min))
    }

    fn listed(&self, ttl: u32) -> Result<ListedCluster, UnusableRecord> {
        ListedCluster::read(&self.record, &self.target.to_ascii(), self.port, &self.properties, ttl)
    }
}

/// The `key=value` strings of a TXT record that are valid UTF-8.
fn properties(record: &Record) -> Vec<(String, String)> {
    let RData::TXT(text) = &record.data else { return Vec::new() };
    let pairs = text.txt_data.iter().filter_map(|bytes| std::str::from_utf8(bytes).ok());
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, PTR, SRV, TXT};

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn record(ttl: u32, data: RData) -> Record {
        Record::from_rdata(name("campus.example.com."), ttl, data)
    }

    fn service(ttl: u32, priority: u16, weight: u16, host: &str) -> Record {
        record(ttl, RData::SRV(SRV::new(priority, weight, 443, name(host))))
    }

    #[test]
    fn a_name_is_listed_once() {
        let pointer = |host: &str| record(60, RData::PTR(PTR(name(host))));
        let text = record(60, RData::TXT(TXT::new(vec!["b.example.com.".to_owned()])));
        let names = names(vec![pointer("A.example.com."), pointer("a.Example.com."), text]);
        assert_eq!(names.into_keys().collect::<Vec<_>>(), ["a.example.com."]);
    }

    #[test]
    fn the_best_srv_record_is_used_with_the_shortest_ttl() {
        let campus = name("Campus.example.com.");
        let services =
            [service(90, 2, 9, "a.org."), service(80, 1, 1, "b.org."), service(70, 1, 5, "C.org.")];
        let pairs = ["ID=9f0f", "name=campus", "nothing"].map(str::to_owned).to_vec();
        let texts = [record(65, RData::TXT(TXT::new(pairs)))];
        let service = Service::read(&campus, 300, &services, &texts).unwrap();
        let address = |ttl, octets: [u8; 4]| record(ttl, RData::A(A(octets.into())));
        let listed = service.at(&[address(50, [192, 0, 2, 1])]).unwrap();
        assert_eq!((listed.record.as_str(), listed.ttl), ("campus.example.com.", 50));
        assert_eq!(listed.auth_url, "https://c.org:443");
        assert_eq!(listed.cluster.unwrap().cluster_id.as_str(), "9f0f");
        assert_eq!(service.at(&[address(90, [192, 0, 2, 1])]).unwrap().ttl, 65);
    }

    #[test]
    fn missing_records_are_named() {
        let campus = name("campus.example.com.");
        let error = Service::read(&campus, 60, &[], &[]).unwrap_err();
        assert_eq!(error.to_string(), "campus.example.com. has no SRV record");
        let service = Service::read(&campus, 60, &[service(60, 0, 0, "a.org.")], &[]).unwrap();
        let error = service.at(&[]).unwrap_err();
        assert!(error.to_string().contains("a.org."), "{error}");
    }
}
