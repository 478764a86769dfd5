// What ECP5's MULT18X18D does, as far as the techmap file in fpga/ uses it: 18 x 18 bits, each operand signed or not,
// registers at inputs and output or none, all on CLK0 without enable or reset.

module MULT18X18D (
  input
    A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0, B17, B16, B15, B14, B13,
    B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0, SIGNEDA, SIGNEDB, SOURCEA, SOURCEB, CLK0, CLK1,
    CLK2, CLK3, CE0, CE1, CE2, CE3, RST0, RST1, RST2, RST3,
  output
    P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18, P17, P16, P15,
    P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
);
  parameter REG_INPUTA_CLK = "NONE";
  parameter REG_INPUTB_CLK = "NONE";
  parameter REG_OUTPUT_CLK = "NONE";

  wire [17:0] a = {
    A17, A16, A15, A14, A13, A12, A11, A10, A9, A8, A7, A6, A5, A4, A3, A2, A1, A0
  };
  wire [17:0] b = {
    B17, B16, B15, B14, B13, B12, B11, B10, B9, B8, B7, B6, B5, B4, B3, B2, B1, B0
  };
  reg [17:0] stored_a, stored_b;
  reg [35:0] stored_p;
  wire [17:0] x = REG_INPUTA_CLK == "NONE" ? a : stored_a;
  wire [17:0] y = REG_INPUTB_CLK == "NONE" ? b : stored_b;
  wire [35:0] product = {{18{SIGNEDA & x[17]}}, x} * {{18{SIGNEDB & y[17]}}, y};
  assign {
    P35, P34, P33, P32, P31, P30, P29, P28, P27, P26, P25, P24, P23, P22, P21, P20, P19, P18, P17, P16, P15,
    P14, P13, P12, P11, P10, P9, P8, P7, P6, P5, P4, P3, P2, P1, P0
  } = REG_OUTPUT_CLK == "NONE" ? product : stored_p;
  always @(posedge CLK0) begin
    stored_a <= a;
    stored_b <= b;
    stored_p <= product;
  end

  initial
    if (SOURCEA | SOURCEB | ~CE0 | RST0) begin
      $display("only plain inputs are modelled");
      $finish;
    end
endmodule
