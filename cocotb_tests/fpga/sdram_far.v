// The SDRAM behind the delays of wires and pins; for simulators that know delays.
//
// Its clock comes SKEW_PS after clk2x, its other pins OUT_PS after the registers that drive them, its clock too. A word is
// there ACCESS_PS after its clock edge and stays for HOLD_PS after the next one; to the other side it takes IN_PS.

module sdram_far #(
    parameter PERIOD_PS = 10000,
    parameter STORED_ROW_BITS = 13,
    parameter POWER_UP_PS = 200000000,
    parameter SKEW_PS = 0,
    parameter OUT_PS = 0,
    parameter IN_PS = 0,
    parameter ACCESS_PS = 0,
    parameter HOLD_PS = 0
) (
    input clk,
    input cke,
    input cs_n,
    input ras_n,
    input cas_n,
    input we_n,
    input [1:0] ba,
    input [12:0] a,
    input [1:0] dm,
    inout [15:0] dq,
    input clear,
    output [15:0] broken,
    output [31:0] refreshes,
    output [31:0] activates,
    output [31:0] reads,
    output [31:0] writes
);
  reg far_clk;
  reg [21:0] far_pins;
  reg [15:0] far_dq;
  wire [15:0] out;
  wire [1:0] drive;
  reg [17:0] near = 0;  // drive and words, at the other side

  always @(clk) far_clk <= #((SKEW_PS + OUT_PS) / 1000.0) clk;
  always @(cke or cs_n or ras_n or cas_n or we_n or ba or a or dm)
    far_pins <= #(OUT_PS / 1000.0) {cke, cs_n, ras_n, cas_n, we_n, ba, a, dm};
  always @(dq) far_dq <= #(OUT_PS / 1000.0) dq;
  always @(out or drive) begin
    near <= #((HOLD_PS + IN_PS) / 1000.0) {drive, 16'bx};
    near <= #((ACCESS_PS + IN_PS) / 1000.0) {drive, out};
  end
  assign dq[7:0] = near[16] ? near[7:0] : 8'bz;
  assign dq[15:8] = near[17] ? near[15:8] : 8'bz;

  sdram_model #(.PERIOD_PS(PERIOD_PS), .STORED_ROW_BITS(STORED_ROW_BITS), .POWER_UP_PS(POWER_UP_PS)) model(
      .clk(far_clk), .cke(far_pins[21]), .cs_n(far_pins[20]), .ras_n(far_pins[19]), .cas_n(far_pins[18]),
      .we_n(far_pins[17]), .ba(far_pins[16:15]), .a(far_pins[14:2]), .dm(far_pins[1:0]), .dq_i(far_dq), .dq_o(out),
      .dq_oe(drive), .off(1'b0), .clear(clear), .broken(broken), .refreshes(refreshes), .activates(activates),
      .reads(reads), .writes(writes));
endmodule
