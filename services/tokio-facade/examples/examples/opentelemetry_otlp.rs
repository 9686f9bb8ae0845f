//! opentelemetry-otlp over gRPC, and a collector that prints the spans that it gets.
//!
//! ```text
//! collected: work
//! ```

use std::error::Error;

use opentelemetry::trace::{Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest as Spans, ExportTraceServiceResponse as Reply,
    trace_service_server::{TraceService, TraceServiceServer},
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tonic::{Request, Response, Status, transport::Server};

struct Collector;

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(&self, spans: Request<Spans>) -> Result<Response<Reply>, Status> {
        println!("collected: {}", spans.get_ref().resource_spans[0].scope_spans[0].spans[0].name);
        Ok(Response::new(Reply::default()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let url = format!("http://{}", incoming.local_addr()?);
    let server = Server::builder().add_service(TraceServiceServer::new(Collector));
    tokio::spawn(server.serve_with_incoming(incoming));
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(url).build()?;
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
    drop(provider.tracer("example").start("work"));
    // It blocks its thread until all is sent, by tasks of this one.
    Ok(tokio::task::spawn_blocking(move || provider.shutdown()).await??)
}
