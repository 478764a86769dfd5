// ECP5: the multipliers of the PE array as DSP blocks with their own registers at inputs and output, for yosys' techmap.
// Ports and behaviour are those of Multiplier in rtl/gemm/_multiplier.py; operands are signed, of at most 18 bits.

module kvo_multiplier (clk, rst, a, b, product);
  parameter A_BITS = 18;
  parameter B_BITS = 18;
  input clk, rst;
  input [A_BITS-1:0] a;
  input [B_BITS-1:0] b;
  output [A_BITS+B_BITS-1:0] product;

  wire [17:0] x = {{(18 - A_BITS){a[A_BITS-1]}}, a};
  wire [17:0] y = {{(18 - B_BITS){b[B_BITS-1]}}, b};
  wire [35:0] p;
  assign product = p[A_BITS+B_BITS-1:0];

  MULT18X18D #(
    .REG_INPUTA_CLK("CLK0"), .REG_INPUTB_CLK("CLK0"), .REG_OUTPUT_CLK("CLK0")
  ) _TECHMAP_REPLACE_ (
    .A0(x[0]), .A1(x[1]), .A2(x[2]), .A3(x[3]), .A4(x[4]), .A5(x[5]),
    .A6(x[6]), .A7(x[7]), .A8(x[8]), .A9(x[9]), .A10(x[10]), .A11(x[11]),
    .A12(x[12]), .A13(x[13]), .A14(x[14]), .A15(x[15]), .A16(x[16]), .A17(x[17]),
    .B0(y[0]), .B1(y[1]), .B2(y[2]), .B3(y[3]), .B4(y[4]), .B5(y[5]),
    .B6(y[6]), .B7(y[7]), .B8(y[8]), .B9(y[9]), .B10(y[10]), .B11(y[11]),
    .B12(y[12]), .B13(y[13]), .B14(y[14]), .B15(y[15]), .B16(y[16]), .B17(y[17]),
    .P0(p[0]), .P1(p[1]), .P2(p[2]), .P3(p[3]), .P4(p[4]), .P5(p[5]),
    .P6(p[6]), .P7(p[7]), .P8(p[8]), .P9(p[9]), .P10(p[10]), .P11(p[11]),
    .P12(p[12]), .P13(p[13]), .P14(p[14]), .P15(p[15]), .P16(p[16]), .P17(p[17]),
    .P18(p[18]), .P19(p[19]), .P20(p[20]), .P21(p[21]), .P22(p[22]), .P23(p[23]),
    .P24(p[24]), .P25(p[25]), .P26(p[26]), .P27(p[27]), .P28(p[28]), .P29(p[29]),
    .P30(p[30]), .P31(p[31]), .P32(p[32]), .P33(p[33]), .P34(p[34]), .P35(p[35]),
    .SIGNEDA(1'b1), .SIGNEDB(1'b1), .SOURCEA(1'b0), .SOURCEB(1'b0),
    .CLK0(clk), .CLK1(1'b0), .CLK2(1'b0), .CLK3(1'b0),
    .CE0(1'b1), .CE1(1'b1), .CE2(1'b1), .CE3(1'b1),
    .RST0(1'b0), .RST1(1'b0), .RST2(1'b0), .RST3(1'b0)
  );
endmodule
