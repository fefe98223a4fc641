//! Exposure of the auth service to other clusters: from the flags, or unchanged.

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::DeleteParams;
use kube::{Api, Client};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::server::ParsedCertificate;
use tombolo_api::names::{AUTH_CERTIFICATE_SECRET, AUTH_SERVICE, AUTH_URL_ANNOTATION, NAMESPACE};
use tombolo_core::discovery::{checked_url, is_host_name};

use super::is_missing;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Service type of the auth service [default: unchanged, or NodePort]
    ///
    /// Other clusters request their identity from the auth service over HTTPS, so they must reach
    /// it. With ClusterIP, set --auth-ingress or --auth-url.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub auth_service_type: Option<ServiceType>,
    /// Host of an Ingress for the auth service; "" for none [default: unchanged, or none]
    ///
    /// The Ingress controller must present the certificate of the auth service, in Secret
    /// liqo/liqo-auth-cert: other clusters pin it.
    #[arg(long, value_name = "HOST")]
    pub auth_ingress: Option<String>,
    /// URL of the auth service for other clusters; "" to detect it [default: unchanged, or detected]
    ///
    /// Set it where the address that other clusters use is not visible in this cluster, for example
    /// behind NAT or an external load balancer.
    #[arg(long, value_name = "URL")]
    pub auth_url: Option<String>,
}

/// Type of the Service of the auth service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ServiceType {
    #[default]
    #[value(name = "NodePort")]
    NodePort,
    #[value(name = "LoadBalancer")]
    LoadBalancer,
    #[value(name = "ClusterIP")]
    ClusterIp,
}

impl ServiceType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ClusterIp => "ClusterIP",
        }
    }

    fn of(service: &Service) -> Option<Self> {
        let name = service.spec.as_ref()?.type_.as_deref()?;
        let all = [Self::NodePort, Self::LoadBalancer, Self::ClusterIp];
        all.into_iter().find(|it| it.as_str() == name)
    }
}

/// How the auth service is exposed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exposure {
    pub service_type: ServiceType,
    /// Host of the Ingress, if any.
    pub ingress: Option<String>,
    /// The configured URL, if any.
    url: Option<String>,
}

impl Exposure {
    /// From the flags, with the current state of the cluster as default.
    pub async fn decide(flags: &Flags, client: &Client) -> Result<Self> {
        flags.decide(&Self::read(client).await?)
    }

    /// The advertised URL; None if it has to be detected.
    pub fn advertised_url(&self) -> Option<String> {
        self.url.clone().or_else(|| self.ingress.as_ref().map(|host| format!("https://{host}")))
    }

    /// Deletes the Ingress if it is not wanted any more.
    pub async fn remove_unused(&self, client: &Client) -> Result<()> {
        if self.ingress.is_some() {
            return Ok(());
        }
        let ingresses: Api<Ingress> = Api::namespaced(client.clone(), NAMESPACE);
        match ingresses.delete(AUTH_SERVICE, &DeleteParams::default()).await {
            Err(error) if !is_missing(&error) => {
                Err(error).context("delete Ingress liqo/liqo-auth")
            }
            _ => Ok(()),
        }
    }

    async fn read(client: &Client) -> Result<Self> {
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let service =
            services.get_opt(AUTH_SERVICE).await.context("read Service liqo/liqo-auth")?;
        let ingresses: Api<Ingress> = Api::namespaced(client.clone(), NAMESPACE);
        let ingress = ingresses.get_opt(AUTH_SERVICE).await;
        Ok(Self::of(service.as_ref(), ingress.context("read Ingress liqo/liqo-auth")?.as_ref()))
    }

    fn of(service: Option<&Service>, ingress: Option<&Ingress>) -> Self {
        let annotations = service.and_then(|service| service.metadata.annotations.as_ref());
        let advertised = annotations.and_then(|all| all.get(AUTH_URL_ANNOTATION)).cloned();
        let rules = ingress.and_then(|ingress| ingress.spec.as_ref()?.rules.as_ref());
        let read = Self {
            service_type: service.and_then(ServiceType::of).unwrap_or_default(),
            ingress: rules.and_then(|rules| rules.first()?.host.clone()),
            url: None,
        };
        let url = advertised.filter(|url| read.advertised_url().as_ref() != Some(url));
        Self { url, ..read }
    }
}

/// Advice when the certificate of the auth service does not name the host of the Ingress.
pub async fn advice(client: &Client) -> Result<Option<String>> {
    let Some(host) = Exposure::read(client).await?.ingress else { return Ok(None) };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = secrets.get_opt(AUTH_CERTIFICATE_SECRET).await;
    let secret = secret.context("read Secret liqo/liqo-auth-cert")?;
    Ok(secret.filter(|secret| !names(secret, &host)).map(|_| {
        format!(
            "The certificate in Secret liqo/liqo-auth-cert does not name {host}. Some Ingress \
             controllers, such as ingress-nginx, then present another certificate, which other \
             clusters reject. Run `kubectl -n liqo delete secret liqo-auth-cert` to have a new one \
             issued, or set spec.auth.certificate in the ClusterConfig. Clusters that pinned the \
             old certificate need the new fingerprint."
        )
    }))
}

/// Whether the certificate in a Secret is valid for this host.
fn names(secret: &Secret, host: &str) -> bool {
    let pem = secret.data.as_ref().and_then(|data| data.get("tls.crt"));
    let certificate = pem.and_then(|pem| CertificateDer::from_pem_slice(&pem.0).ok());
    let parsed = certificate.as_ref().and_then(|der| ParsedCertificate::try_from(der).ok());
    let (Some(parsed), Ok(host)) = (parsed, ServerName::try_from(host)) else { return false };
    verify_server_name(&parsed, &host).is_ok()
}

impl Flags {
    fn decide(&self, earlier: &Exposure) -> Result<Exposure> {
        let ingress = match self.auth_ingress.as_deref() {
            None => earlier.ingress.clone(),
            Some("") => None,
            Some(host) => {
                ensure!(
                    is_host_name(host),
                    "--auth-ingress {host:?} is not a host name, such as auth.example.com"
                );
                Some(host.to_owned())
            }
        };
        let url = match self.auth_url.as_deref() {
            None => earlier.url.clone(),
            Some("") => None,
            Some(url) => Some(checked_url(url).map_err(|why| {
                anyhow!(
                    "--auth-url {url:?}: {why}; expected a URL such as https://auth.example.com:443"
                )
            })?),
        };
        let service_type = self.auth_service_type.unwrap_or(earlier.service_type);
        let exposure = Exposure { service_type, ingress, url };
        ensure!(
            service_type != ServiceType::ClusterIp || exposure.advertised_url().is_some(),
            "other clusters can't reach a Service of type ClusterIP: set --auth-ingress or \
             --auth-url, or another --auth-service-type"
        );
        Ok(exposure)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn flags(kind: Option<ServiceType>, ingress: Option<&str>, url: Option<&str>) -> Flags {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Flags { auth_service_type: kind, auth_ingress: text(ingress), auth_url: text(url) }
    }

    fn found(kind: &str, annotations: &Value, host: Option<&str>) -> Exposure {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "annotations": annotations }, "spec": { "type": kind },
        }))
        .unwrap();
        let ingress = host.map(|host| json!({ "spec": { "rules": [{ "host": host }] } }));
        let ingress: Option<Ingress> = ingress.map(|it| serde_json::from_value(it).unwrap());
        Exposure::of(Some(&service), ingress.as_ref())
    }

    #[test]
    fn the_exposure_stays_unless_a_flag_changes_it() {
        let nothing = flags(None, None, None);
        assert_eq!(nothing.decide(&Exposure::default()).unwrap(), Exposure::default());
        assert_eq!(Exposure::of(None, None), Exposure::default());
        let host = json!({ AUTH_URL_ANNOTATION: "https://rome.example.com" });
        let named = json!({ AUTH_URL_ANNOTATION: "https://other.example.com:8443" });
        for earlier in [
            found("LoadBalancer", &json!({}), None),
            found("ClusterIP", &host, Some("rome.example.com")),
            found("NodePort", &named, Some("rome.example.com")),
        ] {
            assert_eq!(nothing.decide(&earlier).unwrap(), earlier);
        }
        // A URL derived from the Ingress goes with it.
        let ingress = found("NodePort", &host, Some("rome.example.com"));
        assert_eq!(ingress.url, None);
        let none = flags(None, Some(""), None).decide(&ingress).unwrap();
        assert_eq!((none.advertised_url(), none.ingress), (None, None));
        let moved = flags(None, Some("milan.example.com"), None).decide(&ingress).unwrap();
        assert_eq!(moved.advertised_url().as_deref(), Some("https://milan.example.com"));
        // A configured URL stays.
        let named = found("NodePort", &named, Some("rome.example.com"));
        let none = flags(None, Some(""), None).decide(&named).unwrap();
        assert_eq!(none.advertised_url().as_deref(), Some("https://other.example.com:8443"));
        let back = flags(None, None, Some("")).decide(&named).unwrap();
        assert_eq!(back.advertised_url().as_deref(), Some("https://rome.example.com"));
    }

    #[test]
    fn an_invalid_exposure_is_refused_with_the_name_of_its_flag() {
        use ServiceType::ClusterIp;
        let complaint = |flags: Flags| flags.decide(&Exposure::default()).unwrap_err().to_string();
        assert!(complaint(flags(None, Some("192.0.2.1"), None)).starts_with("--auth-ingress"));
        assert!(complaint(flags(None, None, Some("http://rome"))).starts_with("--auth-url"));
        let alone = complaint(flags(Some(ClusterIp), None, None));
        assert!(alone.contains("--auth-ingress or --auth-url"), "{alone}");
        assert!(
            flags(Some(ClusterIp), None, Some("https://rome")).decide(&Exposure::default()).is_ok()
        );
        let named = flags(None, None, Some("")).decide(&found("ClusterIP", &json!({}), None));
        assert!(named.is_err());
    }
}
