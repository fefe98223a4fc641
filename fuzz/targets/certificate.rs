//! Certificates issued by another cluster, of which only the validity period is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_core::identity::Lifetime;

fuzz_target!(|der: &[u8]| {
    if let Some(life) = Lifetime::of_certificate(der) {
        assert!(life.issued <= life.renew_at() && life.renew_at() <= life.expires);
    }
});
