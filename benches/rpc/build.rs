//! Writes the client and the server of tonic, without `protoc`.

#[cfg(feature = "tonic")]
fn main() {
    use tonic_build::manual::{Builder, Method, Service};

    let echo = Method::builder()
        .name("echo")
        .route_name("Echo")
        .input_type("crate::on_tonic::Text")
        .output_type("crate::on_tonic::Text")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let service = Service::builder().package("bench").name("Echo").method(echo).build();
    Builder::new().compile(&[service]);
}

#[cfg(not(feature = "tonic"))]
fn main() {}
