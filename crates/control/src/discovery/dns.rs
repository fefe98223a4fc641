//! Asks DNS which clusters a domain lists: PTR, then for each name SRV and TXT, then A and AAAA.

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
    Failure, Found, Listed, MOST_LISTED, NotListed, Search, Service, names, record_of,
};

/// Names that are looked up at the same time.
const AT_ONCE: usize = 16;
/// How long a server may take to answer, unless resolv.conf says something else.
const PATIENCE: Duration = Duration::from_secs(3);

/// The DNS servers to ask.
#[derive(Clone, Copy, Debug)]
pub enum Servers {
    /// Those in /etc/resolv.conf, which is read before each search.
    OfThisMachine,
    /// This one.
    At(SocketAddr),
}

/// Searches a domain. Nothing is cached here: how long an answer holds is for others to heed.
pub(super) async fn search(servers: Servers, domain: &str) -> Search {
    let (resolver, servers) = match open(servers) {
        Ok(opened) => opened,
        Err(error) => {
            let answer = Err(Failure::NoAnswer(error.to_string()));
            return Search { servers: "/etc/resolv.conf".to_owned(), answer };
        }
    };
    Search { servers, answer: clusters(&resolver, domain).await }
}

fn open(servers: Servers) -> Result<(TokioResolver, String), NetError> {
    let (config, mut options) = match servers {
        Servers::OfThisMachine => read_system_conf()?,
        Servers::At(address) => {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            server.connections.iter_mut().for_each(|connection| connection.port = address.port());
            let config = ResolverConfig::from_name_servers(vec![server]);
            let mut options = ResolverOpts::default();
            options.timeout = PATIENCE;
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
    let left_out = names.keys().skip(MOST_LISTED).map(|name| NotListed {
        record: name.clone(),
        what: format!("is left out: only the first {MOST_LISTED} of a domain are used"),
    });
    let mut found = Found { clusters: Vec::new(), unusable: left_out.collect() };
    let lookups = names.into_values().take(MOST_LISTED);
    let mut lookups =
        stream::iter(lookups).map(|(name, ttl)| cluster(resolver, name, ttl)).buffered(AT_ONCE);
    while let Some(result) = lookups.next().await {
        match result {
            Ok(cluster) => found.clusters.push(cluster),
            Err(unusable) => found.unusable.push(unusable),
        }
    }
    Ok(found)
}

async fn cluster(resolver: &TokioResolver, name: Name, ttl: u32) -> Result<Listed, NotListed> {
    let no = |what: String| NotListed { record: record_of(&name), what };
    let ask = async |name: &Name, kind| {
        let answer = lookup(resolver, name.clone(), kind).await;
        answer.or_else(|error| match failure(&error) {
            // A name that is not there has no such record either.
            Failure::NoSuchDomain => Ok(Vec::new()),
            Failure::Unwilling(why) | Failure::NoAnswer(why) => {
                Err(no(format!("can't be looked up: {kind} of {name}: {why}")))
            }
        })
    };
    let (services, texts) = tokio::join!(ask(&name, RecordType::SRV), ask(&name, RecordType::TXT));
    let service = Service::read(&name, ttl, &services?, &texts?)?;

    let target = &service.target;
    let (four, six) = tokio::join!(ask(target, RecordType::A), ask(target, RecordType::AAAA));
    // One family is enough.
    let addresses = match (four, six) {
        (Err(error), Err(_)) => return Err(error),
        (four, six) => [four.unwrap_or_default(), six.unwrap_or_default()].concat(),
    };
    service.at(&addresses)
}

/// What is there of that kind: nothing is an answer, too.
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
        ResponseCode::ServFail => Failure::Unwilling("SERVFAIL".to_owned()),
        ResponseCode::Refused => Failure::Unwilling("REFUSED".to_owned()),
        other => Failure::Unwilling(other.to_string()),
    }
}
