//! Certificates and kubeconfigs of a cluster, created once.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::error::{Error, Result};
use crate::files;

/// The subject of a client certificate.
struct Subject<'a> {
    file: &'a str,
    common_name: &'a str,
    organisation: Option<&'a str>,
}

/// The PKI files of one cluster, in one directory.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    dir: PathBuf,
}

impl Pki {
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates the CA, the certificates of the control plane, and one for each node.
    pub fn make(
        &self,
        cluster: &str,
        api_server: Ipv4Addr,
        api_service: Ipv4Addr,
        nodes: &[(String, Ipv4Addr)],
    ) -> Result<()> {
        files::make_dir(&self.dir)?;
        let authority = self.make_authority(cluster)?;

        let names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
        ];
        let addresses = [api_server, api_service, Ipv4Addr::LOCALHOST];
        let subject =
            Subject { file: "apiserver", common_name: "kube-apiserver", organisation: None };
        self.issue(&authority, &subject, &names, &addresses)?;

        let clients = [
            ("kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters")),
            ("front-proxy", "front-proxy-client", None),
            ("admin", "admin", Some("system:masters")),
            ("controller-manager", "system:kube-controller-manager", None),
            ("scheduler", "system:kube-scheduler", None),
            ("proxy", "system:kube-proxy", None),
        ];
        for (file, common_name, organisation) in clients {
            let subject = Subject { file, common_name, organisation };
            self.issue(&authority, &subject, &[], &[])?;
            self.write_kubeconfig(cluster, api_server, file)?;
        }
        for (node, address) in nodes {
            let subject = Subject {
                file: node,
                common_name: &format!("system:node:{node}"),
                organisation: Some("system:nodes"),
            };
            self.issue(&authority, &subject, &[node], &[*address])?;
            self.write_kubeconfig(cluster, api_server, node)?;
        }

        let key = KeyPair::generate().map_err(certificate("service accounts"))?;
        files::write_secret(&self.file("sa.key"), &key.serialize_pem())?;
        files::write(&self.file("sa.pub"), key.public_key_pem())
    }

    fn make_authority(&self, cluster: &str) -> Result<Issuer<'static, KeyPair>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("{cluster}-ca"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate().map_err(certificate(cluster))?;
        let authority = params.self_signed(&key).map_err(certificate(cluster))?;
        files::write(&self.file("ca.crt"), authority.pem())?;
        files::write_secret(&self.file("ca.key"), &key.serialize_pem())?;
        Ok(Issuer::new(params, key))
    }

    fn issue(
        &self,
        authority: &Issuer<'_, KeyPair>,
        subject: &Subject<'_>,
        names: &[&str],
        addresses: &[Ipv4Addr],
    ) -> Result<()> {
        let failed = || certificate(subject.common_name);
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed())?;
        params.subject_alt_names.extend(addresses.iter().map(|&ip| SanType::IpAddress(ip.into())));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.common_name);
        if let Some(organisation) = subject.organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed())?;
        let signed = params.signed_by(&key, authority).map_err(failed())?;
        files::write(&self.file(&format!("{}.crt", subject.file)), signed.pem())?;
        files::write_secret(&self.file(&format!("{}.key", subject.file)), &key.serialize_pem())
    }

    fn write_kubeconfig(&self, cluster: &str, api_server: Ipv4Addr, user: &str) -> Result<()> {
        let at = |name: String| self.file(&name).display().to_string();
        let inline =
            |path: String| -> Result<String> { Ok(base64(&files::read(Path::new(&path))?)) };
        let (ca, certificate, key) = (
            inline(at("ca.crt".into()))?,
            inline(at(format!("{user}.crt")))?,
            inline(at(format!("{user}.key")))?,
        );
        let config = format!(
            "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster: {{server: \"https://{api_server}:6443\", certificate-authority-data: {ca}}}
users:
- name: {user}
  user: {{client-certificate-data: {certificate}, client-key-data: {key}}}
contexts:
- name: {cluster}
  context: {{cluster: {cluster}, user: {user}}}
current-context: {cluster}
"
        );
        files::write_secret(&self.file(&format!("{user}.conf")), &config)
    }
}

fn certificate(name: &str) -> impl Fn(rcgen::Error) -> Error {
    let name = name.to_owned();
    move |reason| Error::Certificate { name: name.clone(), reason }
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}
