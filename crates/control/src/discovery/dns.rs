//! Queries DNS for the clusters that a domain lists: PTR, then for each name SRV and TXT, then A
//! and AAAA.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt, stream};
use hickory_resolver::{
    TokioResolver,
    config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{DnsError, NetError, NoRecords, runtime::TokioRuntimeProvider},
    proto::{
        op::ResponseCode,
        rr::{Name, Record, RecordType},
    },
    system_conf::read_system_conf,
};
use tombolo_core::discovery::{
    Failure, Found, ListedCluster, MAX_LISTED, Search, Service, UnusableRecord, names, record_of,
};

/// Concurrent lookups.
const MAX_CONCURRENT: usize = 16;
/// Time limit of a query, unless resolv.conf sets one.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

/// The DNS servers to query.
#[derive(Clone, Copy, Debug)]
pub enum Servers {
    /// Those in /etc/resolv.conf, which is read before each search.
    ResolvConf,
    /// This server only.
    At(SocketAddr),
}

/// Searches a domain. Nothing is cached here: the caller honours the TTLs.
pub(super) async fn search(servers: Servers, domain: &str) -> Search {
    let (resolver, servers) = match open(servers) {
        Ok(opened) => opened,
        Err(error) => {
            let answer = Err(Failure::NoAnswer(error.to_string()));
            return Search { servers: "the server in /etc/resolv.conf".to_owned(), answer };
        }
    };
    Search { servers, answer: clusters(&resolver, domain).await }
}

fn open(servers: Servers) -> Result<(TokioResolver, String), NetError> {
    let (config, mut options) = match servers {
        Servers::ResolvConf => read_system_conf()?,
        Servers::At(address) => {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            server.connections.iter_mut().for_each(|connection| connection.port = address.port());
            let config = ResolverConfig::from_name_servers(vec![server]);
            let mut options = ResolverOpts::default();
            options.timeout = QUERY_TIMEOUT;
            (config, options)
        }
    };
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    let names: Vec<_> = config
        .name_servers()
        .iter()
        .map(|server| {
            let port = server.connections.first().map_or(53, |connection| connection.port);
            SocketAddr::new(server.ip, port).to_string()
        })
        .collect();
    let provider = TokioRuntimeProvider::default();
    let resolver = TokioResolver::builder_with_config(config, provider).with_options(options);
    Ok((resolver.build()?, names.join(", ")))
}

async fn clusters(resolver: &TokioResolver, domain: &str) -> Result<Found, Failure> {
    let mut name = Name::from_ascii(domain).map_err(|_| Failure::NoSuchDomain)?;
    name.set_fqdn(true);
    let listed = lookup(resolver, name, RecordType::PTR).await.map_err(|error| failure(&error))?;
    let names = names(listed);
    let left_out = names.keys().skip(MAX_LISTED).map(|name| UnusableRecord {
        record: name.clone(),
        what: format!("is ignored: only the first {MAX_LISTED} clusters of a domain are used"),
    });
    let mut found = Found { clusters: Vec::new(), unusable: left_out.collect() };
    let lookups = names.into_values().take(MAX_LISTED);
    let mut lookups = stream::iter(lookups)
        .map(|(name, ttl)| cluster(resolver, name, ttl))
        .buffered(MAX_CONCURRENT);
    while let Some(result) = lookups.next().await {
        match result {
            Ok(cluster) => found.clusters.push(cluster),
            Err(unusable) => found.unusable.push(unusable),
        }
    }
    Ok(found)
}

async fn cluster(
    resolver: &TokioResolver,
    name: Name,
    ttl: u32,
) -> Result<ListedCluster, UnusableRecord> {
    let unusable = |what: String| UnusableRecord { record: record_of(&name), what };
    let query = async |name: &Name, kind| {
        let answer = lookup(resolver, name.clone(), kind).await;
        answer.or_else(|error| match failure(&error) {
            // A name that does not exist has no such record.
            Failure::NoSuchDomain => Ok(Vec::new()),
            Failure::ErrorCode(why) | Failure::NoAnswer(why) => {
                Err(unusable(format!("can't be looked up: {kind} {name}: {why}")))
            }
        })
    };
    let (services, texts) =
        tokio::join!(query(&name, RecordType::SRV), query(&name, RecordType::TXT));
    let service = Service::read(&name, ttl, &services?, &texts?)?;

    let target = &service.target;
    let (four, six) = tokio::join!(query(target, RecordType::A), query(target, RecordType::AAAA));
    // One address family is enough.
    let addresses = match (four, six) {
        (Err(error), Err(_)) => return Err(error),
        (four, six) => [four.unwrap_or_default(), six.unwrap_or_default()].concat(),
    };
    service.at(&addresses)
}

/// The records of a type. An empty answer is no error.
async fn lookup(
    resolver: &TokioResolver,
    name: Name,
    kind: RecordType,
) -> Result<Vec<Record>, NetError> {
    match resolver.lookup(name, kind).await {
        Ok(answer) => Ok(answer.answers().to_vec()),
        Err(NetError::Dns(DnsError::NoRecordsFound(NoRecords {
            response_code: ResponseCode::NoError,
            ..
        }))) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn failure(error: &NetError) -> Failure {
    let code = match error {
        NetError::Dns(DnsError::ResponseCode(code)) => *code,
        NetError::Dns(DnsError::NoRecordsFound(none)) => none.response_code,
        other => return Failure::NoAnswer(other.to_string()),
    };
    match code {
        ResponseCode::NXDomain => Failure::NoSuchDomain,
        ResponseCode::ServFail => Failure::ErrorCode("SERVFAIL".to_owned()),
        ResponseCode::Refused => Failure::ErrorCode("REFUSED".to_owned()),
        other => Failure::ErrorCode(other.to_string()),
    }
}
